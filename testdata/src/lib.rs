//! Fixtures and builders that tests, fuzz targets and benches share.
