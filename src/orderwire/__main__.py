"""`python -m orderwire` is the command `orderwire`."""

from orderwire.cli.main import main

main(prog_name="orderwire")
