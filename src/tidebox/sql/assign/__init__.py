"""How a value is bent to a column's type, by families of types. ``values`` chooses among them."""
