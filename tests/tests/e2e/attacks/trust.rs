//! A cloned repository before and after its `.planck/` is trusted.
