"""The parts of a step: compute, exposed communication by axis, bubble, host, idle; and the traffic of each axis."""
