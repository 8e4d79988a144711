"""The documentation as a site: what pages show is what programs print, and the site builds and asks for nothing."""
