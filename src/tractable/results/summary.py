"""The table of ``Posterior.summary``."""

import pandas as pd


class Summary(pd.DataFrame):
    """A DataFrame that prints all of its columns, on as many lines as the terminal's width asks for."""

    def __repr__(self) -> str:
        with pd.option_context("display.max_columns", None, "display.expand_frame_repr", True):
            return super().__repr__()
