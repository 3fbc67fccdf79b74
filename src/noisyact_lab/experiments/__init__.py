"""The paper's experiments: each one a file that reads top to bottom, run by one engine.

``noisyact list`` names them; README.md in this folder says how a run is kept. Needs the extra `experiments`.
"""
