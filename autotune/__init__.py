"""autotune: the configuration with which a training script trains fastest, without hurting it.

The root stays light: importing it loads nothing but the standard library.
"""

__version__ = "0.1.0"
