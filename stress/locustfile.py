"""What locust loads: `locust -f stress/locustfile.py --host http://127.0.0.1:8000 --headless -u 8 -t 10s`.

Importing locust patches the whole process for gevent, and trio must not run in a process that is: nothing else imports this.
"""

from __future__ import annotations

from locust import events

from stress.load.hooks import Hooks, Shape
from stress.load.users import Noisy, Replayer, Victim, Visitor

__all__ = ["Noisy", "Replayer", "Shape", "Victim", "Visitor"]

Hooks().listen(events)
