"""Tests of the job service: what it takes, who may ask, and that a job outlives a restart."""
