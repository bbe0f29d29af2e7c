"""One run from config to result, and several of different seeds as one."""
