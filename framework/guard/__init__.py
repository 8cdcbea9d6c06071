"""The boundary around every plugin: what a plugin raises or returns is caught, named and contained here.

One guard a kind of plugin, with a method for each of its interface's. What a plugin raises becomes a PluginError that
names distribution, class and hook; what it returns is checked before anyone relies on it. Errors that belong to the
contract (OutOfBlocks, say) pass, and so does what ends the work from outside: KeyboardInterrupt and Interruption.
"""
