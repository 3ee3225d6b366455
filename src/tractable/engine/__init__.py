"""Everything that runs a method: the compiled loop, climbs, placement on devices, compiling, and saving.

A climb is an iterative maximisation of an objective, such as a log posterior or an ELBO (evidence lower bound).

- ``method.py`` is the base of every method, ``session.py`` holds what a method receives while it learns, and
  ``drawing.py`` is the base of methods that draw chains.
- ``run.py`` is the one compiled loop. ``ascend.py`` is the kernel of a climb. ``climb.py`` is the climb of all
  stochastic maximisers, and ``staged_climb.py`` that of variational methods. ``bound.py`` compares noisy bounds.
- ``search.py`` climbs on the host, that is in Python, by Newton steps and by the L-BFGS of ``ascent.py``.
- ``placement.py`` and ``sharding.py`` place chains and rows on one device or on several.
- ``programs.py`` and ``identity.py`` recognise equal models, which share compiled programs; ``cache.py`` keeps programs
  on disk, and ``mappings.py`` drops them from memory.
- ``checkpoint.py``, ``store.py``, ``leaves.py`` and ``locks.py`` write a run's folder.
- ``preflight.py`` and ``abilities.py`` check a model and a method before anything runs. ``progress.py`` prints how far
  a run has come, ``stopping.py`` handles signals such as Ctrl-C, and ``forks.py`` and ``jobs.py`` handle processes.
"""
