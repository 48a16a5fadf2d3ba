"""Crashes: findings that are kept, each in a folder that replays and stands alone."""
