"""xbfuzz: finds, proves, explains and shrinks the inputs on which a model answers differently on another backend."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "assert_agree"]

if TYPE_CHECKING:
    from fuzzer.agree import assert_agree


def __getattr__(name: str) -> Any:
    """`assert_agree` is imported when it is asked for: the command line starts without torch."""
    if name == "assert_agree":
        from fuzzer.agree import assert_agree

        return assert_agree
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
