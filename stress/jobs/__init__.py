"""The job service: campaigns, load tests and replays as jobs over HTTP. Imports `targets`, `fuzz` and `stress.endpoint`.

    server ──> app ──> store    (SQLite: what was asked, and what became of it)
       │        └────> asking   (a body or a form to the words of a command line)
       └─────> runner ──> a process with the same command line that one would type

A job is a command line. It runs in a process of its own which ends with the service, and a campaign goes on from its folder
when the service is started again. Nothing runs in the service's own process that a target could bring down.
"""
