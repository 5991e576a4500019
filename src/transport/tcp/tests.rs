//! What only the inside can show: peers that misbehave.
