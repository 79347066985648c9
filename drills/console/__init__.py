"""The console as the people of a drill use it: its pages read, its forms filled, its buttons pressed."""
