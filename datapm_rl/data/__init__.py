"""Data preparation: questions and files become a folder that trains (docs/training.md, "Data").

reader (dabench | tablebench | datamind | folder) -> drafts -> check, every row -> split by file -> folder
"""
