"""What a step consists of: compute, exposed communication by axis, bubble, host, idle; and what each axis moved."""
