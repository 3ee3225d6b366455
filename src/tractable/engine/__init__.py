"""Everything that runs a method: the loop of kernels, climbs, placement on devices, compiling, and saving.

- ``method.py`` is the base of every method, ``session.py`` what a method gets while it learns, and ``drawing.py`` the
  base of methods that draw chains.
- ``run.py`` is the one compiled loop. ``ascend.py`` is the kernel of a climb, ``climb.py`` the climb of all stochastic
  maximisers, ``staged_climb.py`` that of variational methods, and ``bound.py`` the judge of a noisy bound.
- ``search.py`` climbs on the host, by the L-BFGS of ``ascent.py`` and Newton steps.
- ``placement.py`` and ``sharding.py`` place chains and rows on one device or on several.
- ``programs.py`` and ``identity.py`` recognise equal models, which share compiled programs; ``cache.py`` keeps programs
  on disk, and ``mappings.py`` drops them from memory.
- ``checkpoint.py``, ``store.py``, ``leaves.py`` and ``locks.py`` write a run's folder.
- ``preflight.py`` and ``abilities.py`` check before anything runs. ``progress.py``, ``stopping.py``, ``forks.py`` and
  ``jobs.py`` deal with the process, its signals and other processes.
"""
