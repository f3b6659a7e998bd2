//! Native.
