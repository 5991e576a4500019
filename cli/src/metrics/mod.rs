//! What a node tells of itself.
