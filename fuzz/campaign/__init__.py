"""Campaigns: many workers over a long time on one target, in one folder that outlives all of them.

    command ──> supervisor ──> crew ──> (a process) shard_main ──> shard ──> Search
                    │            │                                   │
                    │            └── afresh: what is stored or was found, in a fresh process
                    └──────── folder <────────────────── tallies ────┘

A *shard* is a part of a campaign with a seed of its own: no two draw the same schedules, and none is drawn from twice. All
that a shard has to say it writes into the folder, whole or not at all, before it goes on; all that the supervisor knows, it
has read there. So whoever is killed, whenever, nothing that was found is lost, and merging is one code path: reading.
"""
