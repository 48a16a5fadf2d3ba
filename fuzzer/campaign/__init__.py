"""Campaigns: the fuzzing loop, its journal and its summary."""

from fuzzer.campaign.loop import Campaign
from fuzzer.campaign.plan import Options
from fuzzer.campaign.summary import Summary

__all__ = ["Campaign", "Options", "Summary"]
