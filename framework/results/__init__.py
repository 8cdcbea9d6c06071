"""What runs leave behind: names of files, declared metrics, records of a run or a sweep."""
