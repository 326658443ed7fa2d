"""Plans of a training step: a model, systems and a goal become the best plan, and the reasons for it."""
