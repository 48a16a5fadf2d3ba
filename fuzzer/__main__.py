"""`python -m fuzzer` is `xbfuzz`."""

from fuzzer.cli import main

if __name__ == "__main__":
    main()
