"""What each destination makes, and which business fields it wants."""

from __future__ import annotations

from drills.world.desk import Shape
from drills.world.github_like import GITHUB_LIKE
from drills.world.mail import MAIL
from drills.world.stripe_like import STRIPE_LIKE

PAYMENTS = Shape(
    destination="payments",
    kind="refund",
    collection="refunds",
    fields={"payment_id": str, "amount_minor": int, "currency": str, "reason": str},
    natural=("payment_id", "reason"),
)
TICKETS = Shape(
    destination="tickets",
    kind="ticket",
    collection="tickets",
    fields={"subject": str, "body": str, "reference": str, "priority?": str},
    natural=("reference", "subject"),
)
SHAPES = {shape.destination: shape for shape in (PAYMENTS, TICKETS, MAIL, STRIPE_LIKE, GITHUB_LIKE)}
