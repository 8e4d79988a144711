"""Operations of one rank: what its events say of communication, compute, launches and steps."""
