"""Of posteriors as people have them that are trusted, how many are wrong?

As ``trust.py`` for the targets of ``population_realistic.py``, which took no part in the choice of any check: their
numbers are drawn by generators that were not used before, and the first run is published. Maxima are left out, because
whether one exists is not known there. Targets whose long runs do not agree have no known truth and are declined.

Goal: of at least 300 trusted targets none is wrong by more than twice the limits, and at most 1 % are wrong at all.

    python benchmarks/trust_realistic.py --publish --budgets default --processes 2 --record
"""

import trust

if __name__ == "__main__":
    trust.main(__file__, __doc__, realistic=True)
