"""The terms that a page explains where each stands first."""

import re
from collections.abc import Callable

TERMS = {
    "posterior": "The posterior gives the probable values of the unknown numbers, after the data are seen.",
    "prior": "The prior gives the values of the unknown numbers that are probable before the data are seen.",
    "held-out": "Held-out rows were kept out of the fit, so that predictions of them can be judged fairly.",
    "sd": "The sd (standard deviation) is the typical distance of numbers from their mean.",
    "log odds": "Log odds are log(p / (1 − p)) of a probability p: one more multiplies p / (1 − p) by 2.7.",
    "R-hat": "R-hat compares chains that began at different places: it is 1 if they agree, and should be below 1.01.",
    "ESS": "The ESS (effective sample size) is the number of independent draws that would be equally precise.",
    "MCSE": "The MCSE (Monte Carlo standard error) is the error of the mean that comes from the number of draws.",
    "E-BFMI": "E-BFMI says how fast a chain moves between energies (levels of probability); below 0.3 is too slow.",
    "divergences": "Divergences are steps at which the simulation of a path failed, where the posterior is too curved.",
    "k-hat": "k-hat says how unequal the importance weights of draws are; up to 0.7, reweighting draws is reliable.",
    "ELBO": "The ELBO is a lower bound on the log probability of the data; higher is a better fit.",
    "KL": "The KL divergence measures in nats how much one distribution differs from another; 0 means not at all.",
    "nats": "A nat is the unit of the natural logarithm: one nat more makes something 2.7 times as probable.",
    "log predictive": "The log predictive density is high where predictions gave the observed values high probability.",
    "RMSE": "The RMSE (root mean squared error) is the typical distance of predictions from the observed numbers.",
    "CRPS": "The CRPS (continuous ranked probability score) is the distance of a predicted distribution from a row.",
    "coverage": "The coverage is the share of rows inside their predicted interval; it should equal its level.",
    "sharpness": "The sharpness is the mean width of predicted intervals: narrower is better if the coverage is right.",
    "concordance": "The concordance is the share of pairs of rows that are put in the right order; 0.5 is chance.",
    "ECE": "The ECE (expected calibration error) is the mean gap between predicted probabilities and frequencies.",
    "Brier": "The Brier score is the mean squared error of predicted probabilities.",
    "AUROC": "The AUROC is the probability that a score ranks a random pair rightly; 0.5 is chance.",
    "elpd_loo": "elpd_loo is the sum of the rows' log predictive densities, each predicted from all other rows.",
    "p_loo": "p_loo is the effective number of parameters: how much the rows' own presence helps to predict them.",
    "power scaling": "Power scaling raises the prior to a power near 1, and measures how much the result changes.",
    "ECDF": "The ECDF (empirical distribution function) gives the share of numbers up to each value.",
    "BIC": "BIC is −2 log likelihood + (free parameters) · log(number of rows); less is better.",
    "AIC": "AIC is −2 log likelihood + 2 · (free parameters); less is better.",
    "p-value": "The p-value is the probability of ranks at least as uneven as these if the method is right.",
}  # fmt: skip


def explainer() -> Callable[[str], list[str]]:
    """A function that lists the sentences on those terms in a piece of HTML that no earlier piece had."""
    new = dict(TERMS)

    def explain(html: str) -> list[str]:
        words = re.sub(r"<[^>]*>", " ", html)
        here = [term for term in new if re.search(rf"(?<![\w-]){re.escape(term)}(?![\w-])", words)]
        return [new.pop(term) for term in here]

    return explain
