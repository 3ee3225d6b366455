"""The table of ``Posterior.summary``."""

import pandas as pd


class Summary(pd.DataFrame):
    """A DataFrame that prints all of its columns; lines are wrapped to the terminal's width."""

    def __repr__(self) -> str:
        with pd.option_context("display.max_columns", None, "display.expand_frame_repr", True):
            return super().__repr__()
