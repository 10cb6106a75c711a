"""Try every attack that needs one sandbox, as the current user, and print the outcomes as JSON.

Run as a program: as root, as an ordinary user with a range of ids, or as one without.
"""

import json
import sys

import anyio

from tests.attacks._sandboxes import ATTACKS, ROLES, attack_sandboxes


def main() -> None:
    """Print the outcomes by role and attack."""
    sys.stdout.write(json.dumps(anyio.run(attack_sandboxes, ATTACKS, ROLES)))


if __name__ == "__main__":
    main()
