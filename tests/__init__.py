"""What hf_compat does, shown: a folder for each of its folders, see README.md."""
