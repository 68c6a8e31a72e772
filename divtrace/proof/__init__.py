"""Turns candidates into causes, or clears them: counterfactual re-runs that change one choice. Must not know
rendering.
"""
