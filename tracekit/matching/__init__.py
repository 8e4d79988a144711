"""Operations of different ranks that are one communication, and the clocks that their common ends align."""
