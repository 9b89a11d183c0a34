"""The algorithms, one file each. PriSM is one among them: same contract, same footing."""
