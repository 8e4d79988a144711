"""Findings as one offline HTML page: templates, style and script are the files beside these modules."""
