"""Plug-ins that come with xbfuzz. They use what any plug-in can use, and are found through entry points like others."""
