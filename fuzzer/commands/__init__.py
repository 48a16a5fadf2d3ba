"""Commands of the command line that have a module of their own: they parse, call the public API, and print."""
