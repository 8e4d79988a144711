"""Reasons to name a culprit, one module each; `order` lists them as they are asked, `rule` defines their result."""
