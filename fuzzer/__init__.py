"""xbfuzz: finds, proves, explains and shrinks the inputs on which a model answers differently on another backend."""

__version__ = "0.1.0"
