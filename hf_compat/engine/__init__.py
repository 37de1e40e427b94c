"""The only folder that imports lightning: the module, its callbacks and loops."""
