"""The figures and sentences of a study that every renderer shows.

Entry points: `view.summary` and `view.study_view`. Pure. The other packages of `report` format what is here.
"""
