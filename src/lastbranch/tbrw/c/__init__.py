"""The TBRW API for C programs: headers, the source of libtbrw, and how both become a package (`build`)."""
