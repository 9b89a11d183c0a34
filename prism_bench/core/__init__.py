"""The one idea: axes, select, gather, merge; the contract of algorithms."""
