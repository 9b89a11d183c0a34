"""Runs become tables, pictures and a page; the regression gate."""
