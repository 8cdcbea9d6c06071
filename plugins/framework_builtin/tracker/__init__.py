"""Built-in plugins of kind tracker."""
