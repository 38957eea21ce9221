"""Powers and antenna tilts of a radio network, station by station, as in the paper on LOCBO."""
