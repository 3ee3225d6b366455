"""Gibbs sampling: blocks of unknowns, each drawn from its full conditional or moved by a kernel of its own."""

import ast
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import DataError, SettingsError
from tractable.core.latent import LatentModel, latent_model
from tractable.core.model import Kernel, Model, PyTree
from tractable.core.words import listing, nearest
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.relabelling import labels
from tractable.diagnostics.report import chain_checks, check_share
from tractable.engine import run as loop
from tractable.engine.drawing import Drawing, WarmUp
from tractable.engine.method import Check, Method, Outcome, Program, Session, from_settings
from tractable.mcmc import full_conditionals as full
from tractable.mcmc.full_conditionals import HIDDEN, Part
from tractable.mcmc.gibbs import allocations, exact, gibbs, in_turn, joint_draw, kernel_block
from tractable.mcmc.hamiltonian_methods import NUTS, divergences
from tractable.mcmc.metropolis_methods import DENSE, Averaging, around_modes, root_of_covariance

EXACT = "exact"  # how users ask for exact draws of a block
COMPARED = 64  # largest number of draws whose component labels are compared
FAMILIES = "normal, gamma and inverse gamma, beta, Dirichlet, Wishart and inverse Wishart"
Blocks = Annotated[
    tuple | None,
    'None, or a dict such as {"z": "exact", "theta": NUTS()}: its keys are names of parameters (several as a tuple, '
    'and "z" for the rows\' z), and its values are "exact", NUTS(), HMC(), MALA() or RandomWalk()',
]


class Entry(NamedTuple):
    """One block of a scan."""

    name: str
    part: Part  # leaves of θ; no leaves in the block of z
    by: Any = None  # the method that moves the block; None if it is drawn exactly


Z = Entry(HIDDEN, Part((), ""))


@dataclass(frozen=True)
class Scan:
    """A sweep over known blocks, for which a program is compiled."""

    entries: tuple[Entry, ...]
    random: bool  # whether blocks are picked at random
    collapse: bool  # whether z is summed out of the density of blocks that kernels move
    at_once: bool  # whether all of θ is drawn at once, given z

    @property
    def by_kernels(self) -> list[Entry]:
        """The blocks that kernels move."""
        return [entry for entry in self.entries if entry.by is not None]

    @property
    def exact(self) -> tuple[Part, ...]:
        """The parts of θ that are drawn from a conditional found by derivatives."""
        if self.at_once:
            return ()
        return tuple(entry.part for entry in self.entries if entry.part.leaves and entry.by is None)

    def weigh(self, info: Mapping[str, jax.Array]) -> None:
        """None, since all draws have equal weights."""

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        """The kernel of the sweep, with the values that warm-up tuned."""
        target, by_kernels = full.target_of(model, rows), self.by_kernels
        first, blocks = [], []
        for entry in self.entries:
            if entry.by is not None:
                make = _maker(entry.by, tuned, by_kernels.index(entry))
                block = kernel_block(target, make, entry.part.leaves, entry.by.thin, self.collapse)
                (first if self.collapse else blocks).append(block)
            elif not entry.part.leaves:
                blocks.append(allocations(target))
            elif not self.at_once:
                blocks.append(exact(target, entry.part.family, entry.part.leaves, entry.part.gradients))
            elif (given := full.all_given(model, rows)) is not None:
                blocks.append(joint_draw(*given))
        if first:  # blocks with z summed out come right before z is drawn, which is then ``blocks[0]``
            blocks[0] = in_turn([*first, blocks[0]])
        names = [entry.name for entry in by_kernels]
        return gibbs(blocks, lambda key, position: target.hidden(key, target.params(position)), names, self.random)


def _maker(by: PyTree, tuned: PyTree, i: int) -> Callable:
    """The function ``density -> Kernel`` for the i-th of the blocks that kernels move."""
    step, scale = tuned[f"step_{i}"], tuned[f"scale_{i}"]
    mass = scale**2 if scale.ndim == 1 else scale @ scale.T
    settings = {"step_size": step, "scale": scale, "inverse_mass": mass}
    if by.summands:
        return lambda density: by.on(density, settings)
    return lambda density: by.on(lambda u: jnp.sum(density(u)), settings)


@dataclass(frozen=True, kw_only=True)
class Gibbs(Drawing):
    """Gibbs sampling: blocks whose full conditional is known are drawn exactly, and kernels move the other blocks.

        z_n ~ p(z_n | x_n, θ) of every row,    θ_b ~ p(θ_b | x, z, all other θ)

    The z of a ``LatentModel`` is drawn in time linear in rows and steps: the allocations of a mixture, or the paths of
    a hidden Markov or linear-Gaussian model. Given z, θ is often conjugate. A parameter is drawn exactly if its full
    conditional is normal, gamma, inverse gamma (of a variance, or of the square of an sd), beta, Dirichlet, Wishart or
    inverse Wishart. The conditional is found from derivatives of any model's density, and tested at several places
    before it is used (``mcmc.conditionals``). The report tests it again at the draws. Geman & Geman 1984; Gelfand &
    Smith 1990; Diebolt & Robert 1994; Carter & Kohn 1994; Chib 1996.

    Args:
        blocks: a dict whose keys are names of parameters, several as a tuple. The value is ``"exact"``, or the method
            that moves the block: ``NUTS()``, ``HMC()``, ``MALA()`` or ``RandomWalk()``, whose ``thin`` is its number of
            steps in a sweep. The name "z" is for the rows' z, which is always exact. ``blocks`` may also be one string,
            ``"z: exact; mu, tau: nuts target=0.9"``. A sweep takes the blocks in this order, and then the parameters
            without a block: those with a known full conditional are drawn exactly, normal ones together; NUTS moves all
            others as one block.
        scan: "fixed" takes the blocks in order; "random" picks as many blocks as there are, with replacement. Several
            chains then take B times as long for B blocks.
        collapse: sum z out of the density of blocks that kernels move, and move them right before z is drawn (van Dyk &
            Park 2008); chains then mix better.
        chains, draws, warmup, thin: as for every method that draws, in sweeps.

    Prefer NUTS if z can be summed out and gradients are cheap: sweeps move little if blocks depend on each other.
    Labels of exchangeable components may switch. The report says so, and ``posterior.relabelled()`` matches them.
    """

    label: ClassVar[str] = "gibbs"
    blocks: Blocks = dataclasses.field(default=None, kw_only=False)
    scan: Literal["fixed", "random"] = "fixed"
    collapse: bool = False

    def __post_init__(self) -> None:
        blocks: Any = _read(self.blocks) if type(self.blocks) is str else self.blocks
        if hasattr(blocks, "items"):
            object.__setattr__(self, "blocks", tuple(_block(*item) for item in blocks.items()))
        super().__post_init__()
        self.check(
            all(by == EXACT or (hasattr(by, "on") and getattr(by, "adjusted", True)) for _, by in self.blocks or ()),
            "blocks",
            '"exact", NUTS(), HMC(), MALA() or RandomWalk() for every block',
        )  # fmt: skip
        every = [name for names, _ in self.blocks or () for name in names]
        self.check(len(set(every)) == len(every), "blocks", "every name in one block only")
        bad = any(HIDDEN in names and (by != EXACT or len(names) > 1) for names, by in self.blocks or ())
        self.check(not bad, "blocks", 'z by itself, and "exact"')

    def settings(self) -> dict[str, Any]:
        written = "; ".join(f"{', '.join(names)}: {_written(by)}" for names, by in self.blocks or ())
        return super().settings() | {"blocks": written or None}

    def needed(self, model: Model) -> Any:
        known = [*full.leaf_names(model), *([HIDDEN] if full.hides(model) else [])]
        for names, _ in self.blocks or ():
            for name in names:
                if not _leaves(known, name):
                    raise SettingsError(
                        f"Gibbs(blocks=...) names {name!r}; this model has {listing(known)}.{nearest(name, known)}"
                    )
        return super().needed(model)

    def program(self, session: Session) -> Program:
        scan: Any = self.scanned(session.model, session.data)
        return Program(session.model, scan, placement=session.placement)

    def learn(self, session: Session) -> Outcome:
        if full.hides(session.model) and session.data.weights is not None:
            raise DataError(
                "Gibbs expects data without weights, since it draws one z per row, and a row of weight 2 needs two; "
                "got weights. Repeat rows instead."
            )
        return super().learn(session)

    def scanned(self, model: Model, data: Any) -> Scan:
        """The blocks in their order: those that the user named, then those that are found for the other parameters."""
        names, hidden = full.leaf_names(model), full.hides(model)
        requests = [([i for n in block for i in _leaves(names, n)], block, by) for block, by in self.blocks or ()]
        taken = {i for leaves, _, _ in requests for i in leaves}
        others = [i for i in range(len(names)) if i not in taken]
        exact = [leaves for leaves, block, by in requests if by == EXACT and block != (HIDDEN,)]
        at_once = hidden and full.all_given(model, None) is not None and all(by == EXACT for *_, by in requests)
        if at_once and len(exact) < 2 and (not exact or not others):
            theta = Entry("theta", Part(tuple(range(len(names))), ""))
            return Scan((Z, theta), self.scan == "random", False, True)
        exact_leaves = [leaf for leaves in exact for leaf in leaves]
        parts = full.find_parts(model, data, [*exact, others])
        if bad := [names[part.leaves[0]] for part in parts if not part.kind and part.leaves[0] in exact_leaves]:
            raise SettingsError(
                f"Gibbs(blocks=...) asks for exact draws of {listing(bad)}, whose conditional density is none of those "
                f"that are known ({FAMILIES}). Give the block a method that moves it, such as NUTS()."
            )
        entries = [] if any(block == (HIDDEN,) for _, block, _ in requests) or not hidden else [Z]
        for leaves, block, by in requests:
            if block == (HIDDEN,):
                entries.append(Z)
            elif by != EXACT:
                entries.append(Entry(_identifier("_".join(block)), Part(tuple(leaves), ""), by))
            else:
                entries += [_exact(names, part) for part in parts if part.leaves[0] in leaves]
        entries += [_exact(names, part) for part in parts if part.kind and part.leaves[0] in others]
        if rest := [i for part in parts if not part.kind for i in part.leaves]:
            entries.append(Entry(_identifier("_".join(names[i] for i in rest[:3])), Part(tuple(rest), ""), NUTS()))
        collapse = self.collapse and hidden
        if collapse:
            entries.sort(key=lambda entry: entry != Z)
        return Scan(tuple(entries), self.scan == "random", collapse, False)

    def starts(self, session: Session, key: jax.Array) -> jax.Array:
        """The starting points: those of the model's own EM algorithm, one for each chain, if the model has one.

        For other models they are those of all methods that draw.
        """
        model, data = latent_model(session.model), session.data
        begin = None if model is None else getattr(model, "first", None) or model.steps.begin
        if model is None or begin is None or data is None:
            return super().starts(session, key)
        rows = data.rows[0] if data.given is None else data.rows
        of = getattr(getattr(model, "conjugate", None), "mean", lambda params: params)
        starts = [of(begin(jax.random.fold_in(key, c), rows)) for c in range(self.chains)]
        positions = jnp.stack([model.position_of(jax.tree.map(jnp.asarray, params)) for params in starts])
        positions = positions.astype(jnp.result_type(float))
        return positions if bool(jnp.all(jnp.isfinite(positions))) else super().starts(session, key)

    def warm_up(self, session: Session, program: Program, keys: jax.Array, positions: jax.Array) -> WarmUp:
        """Make the sweeps of the warm-up, in which step sizes and scales of the blocks' kernels are tuned.

        If there are such kernels, chains begin around modes, as in the Metropolis methods.
        """
        scan: Any = program.method
        positions, root = around_modes(session, positions) if scan.by_kernels else (positions, None)
        tunings = [Tuning.of(entry, session.model, root) for entry in scan.by_kernels]
        shape = self.shape(session._replace(moments=False), program, self.thin)
        rows = loop.rows_of(program, session.data, None)

        def tuned() -> dict[str, jax.Array]:
            return {name: value for i, t in enumerate(tunings) for name, value in t.arrays(i).items()}

        states = loop.begin(program, tuned(), rows, keys, positions)
        rounds = -(-self.warmup // shape.group)
        compiled_loop, host = loop.Loop(program, shape, None), loop.Host(stop=session.stop)
        for round_ in range(rounds):
            result = loop.run(compiled_loop, session.data, tuned(), keys, loop.Start(states, round_), round_ + 1, host)
            if session.stop():
                break
            states = result.states
            for tuning in tunings:
                tuning.update(np.asarray(result.draws), result.info, round_, rounds)
            session.say("warm-up", min((round_ + 1) * shape.group, self.warmup), self.warmup)
        found = {f"step_size {t.entry.name}": t.step for t in tunings}
        return WarmUp(states.position, tuned(), found | {"exact blocks": len(scan.entries) - len(tunings)}, self.thin)

    def checks(self, posterior: Learnt) -> list[Check]:
        model, data, info = posterior.model, posterior.data, posterior.info
        out, positions = chain_checks(posterior), np.asarray(posterior.unconstrained)
        known = data is not None or model.likelihood is None
        scan = self.scanned(model, data) if known else None
        if scan is not None and scan.exact:
            flat = positions.reshape(-1, model.space.size)
            at = jnp.asarray(flat[np.linspace(0, len(flat) - 1, full.PLACES).astype(int)])
            keys, rows = jax.random.split(jax.random.key(1), full.PLACES), None if data is None else data.arrays()
            distance = float(np.max(np.asarray(full.misses_of(model, scan.exact, rows, keys, at)[0])))
            names = full.leaf_names(model)
            what = "; ".join(f"{', '.join(names[i] for i in part.leaves)}: {part.kind}" for part in scan.exact)
            sentence = f"distance of conditionals from the families of the draws; up to 1 is rounding error ({what})"
            out.append(Check("exact draws", distance, "trust" if distance <= 1 else "reject", sentence))
        for name in (name for name in info if name.startswith("acceptance_")):
            what = f"acceptance {name.removeprefix('acceptance_')}"
            out.append(check_share(what, float(np.mean(info[name])), 0.05, 0.9999, "of the block's own kernel"))
        if "divergent" in info and np.any(info["divergent"]):
            out.append(divergences(posterior, "raise the block's target, or use other parameters"))
        latent = latent_model(model)
        if latent is not None and latent.symmetry.permute is not None and data is not None:
            out.append(_switching(latent, data.arrays(), positions))
        return out


def _switching(model: LatentModel, rows: PyTree, positions: np.ndarray) -> Check:
    """The check that exchangeable components keep their labels."""
    flat = positions.reshape(-1, positions.shape[-1])
    orders = labels(model, rows, flat[np.linspace(0, len(flat) - 1, min(COMPARED, len(flat))).astype(int)])
    share = float(np.mean(np.any(orders != np.arange(orders.shape[1]), axis=1)))
    sentence = "share of draws whose component labels differ from those of the most likely draw"
    if not share:
        return Check("label switching", share, "trust", sentence)
    return Check(
        "label switching", share, "caution", f"{sentence}; call relabelled() before you interpret single components"
    )


def _block(names: str | tuple[str, ...], by: PyTree) -> tuple[tuple[str, ...], PyTree]:
    """A block of the user's dict as a pair: a tuple of names, and "exact" or a method."""
    names = tuple(name.strip() for name in names.split(",")) if type(names) is str else tuple(names)
    if type(by) is not str or by == EXACT:
        return names, by
    label, *words = by.split()
    pairs = [word.split("=", 1) for word in words]
    return names, from_settings({"method": label} | {pair[0]: _value(pair[-1]) for pair in pairs})


def _read(text: str) -> dict[str, str]:
    """The dict of blocks that a string such as ``"z: exact; mu, tau: nuts target=0.9"`` describes."""
    return {names.strip(): by.strip() for names, _, by in (part.partition(":") for part in text.split(";"))}


def _written(by: PyTree) -> str:
    """A block's method as text that ``_read`` can read, with those settings that differ from their defaults."""
    if by == EXACT:
        return EXACT
    usual = type(by)().settings()
    return " ".join([by.label, *(f"{name}={v}" for name, v in by.settings().items() if v != usual[name])])


def _value(text: str) -> Any:
    """A setting's value as Python reads the text, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _leaves(names: list[str], name: str) -> list[int]:
    """The indices of the leaves with a name: one leaf, or all leaves of a nested dict."""
    return [i for i, known in enumerate(names) if known == name or known.startswith(f"{name}.")]


def _exact(names: list[str], part: Part) -> Entry:
    return Entry(_identifier(names[part.leaves[0]]), part)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


class Tuning:
    """The step size and the scale of a block that a kernel moves, as warm-up tunes them."""

    def __init__(self, entry: Entry, where: np.ndarray, dense: bool, laplace: np.ndarray | None) -> None:
        self.entry, self.where, self.dense, self.laplace = entry, where, dense, laplace
        root = np.eye(len(where)) if laplace is None else laplace
        self.scale = root if dense else np.sqrt(np.square(root).sum(1))
        self.step = float(entry.by.first_step(len(where)))
        self.averaging, self.seen, self.searching = Averaging.around(self.step), [], True

    @classmethod
    def of(cls, entry: Entry, model: Model, root: np.ndarray | None) -> "Tuning":
        """The first values for a block. ``root`` is a root of the covariance of all parameters, or None if unknown."""
        places = full.target_of(model, (None, None)).places
        where = np.concatenate([np.arange(*places[i]) for i in entry.part.leaves])
        by: Method = entry.by
        dense = getattr(by, "dense", None)
        dense = getattr(by, "preconditioner", None) in ("auto", "dense") if dense is None else dense
        own = None if root is None else np.linalg.cholesky((root @ root.T)[np.ix_(where, where)])
        return cls(entry, where, bool(dense) and len(where) <= DENSE, own)

    def arrays(self, i: int) -> dict[str, jax.Array]:
        """The tuned values of the i-th of the blocks that kernels move, by name."""
        dtype = jnp.result_type(float)
        return {f"step_{i}": jnp.asarray(self.step, dtype), f"scale_{i}": jnp.asarray(self.scale, dtype)}

    def update(self, draws: np.ndarray, info: dict[str, np.ndarray], round_: int, rounds: int) -> None:
        """Tune after a round of sweeps: the step size by dual averaging, and the scale three times in a warm-up."""
        by, size = self.entry.by, len(self.where)
        self.seen.append(draws[..., self.where])
        acceptance = float(np.mean(info[f"acceptance_{self.entry.name}"]))
        self.searching = self.searching and not 0.1 < acceptance < 0.95 and round_ < rounds // 2
        if self.searching:
            self.step *= 4.0 if acceptance > 0.5 else 0.2
            self.averaging, self.seen = Averaging.around(self.step), []
            return
        self.averaging, self.step = self.averaging.updated(by.aim(size) - acceptance)
        tuning_rounds = {max(1, round(rounds * share)) for share in (0.15, 0.35, 0.75)}
        if (
            getattr(by, "preconditioner", "auto")
            and round_ + 1 in tuning_rounds
            and round_ + 1 < rounds
            and len(self.seen) > 1
        ):
            self.scale = root_of_covariance(np.concatenate(self.seen, 1), self.dense, self.laplace)
            self.step, self.seen = float(by.first_step(size)), []
            self.averaging = Averaging.around(self.step)
        if round_ == rounds - 1:
            self.step = self.averaging.average
